"""Objects between ranks: who sends what to whom, and how they become bytes."""
