"""The standalone: a daemon with real servers as child processes, without Docker or root."""
