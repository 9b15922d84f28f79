"""Rendezvous: reads launchers' variables and URLs, and opens stores."""
