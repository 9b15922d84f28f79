"""Starts and supervises processes, for dlrun, spawn(), and tests on several ranks."""
