"""Starting processes: what launchers say, dlrun, spawn, and tests on several ranks."""
