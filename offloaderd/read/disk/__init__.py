"""The cache of blocks on a local disk: files, what is on the disk and what may go there, reads and writes."""
