"""The parts of a rendezvous: launchers, and URLs with their stores."""
