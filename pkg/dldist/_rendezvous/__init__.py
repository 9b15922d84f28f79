"""Rendezvous: launchers' variables, and URLs with their stores."""
