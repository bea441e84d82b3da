"""One topic of an owner: buffer, tailer, chooser, offloader."""
