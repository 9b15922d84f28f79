"""Sending objects between ranks: the exchange itself, and how objects become bytes."""
