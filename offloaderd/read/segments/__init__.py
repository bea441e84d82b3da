"""Reading committed segments by ranged GETs."""
