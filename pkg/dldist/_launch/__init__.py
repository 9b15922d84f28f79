"""Starts and supervises processes: dlrun, spawn(), and tests on several ranks."""
