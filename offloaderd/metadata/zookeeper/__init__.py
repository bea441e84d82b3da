"""The metadata store over ZooKeeper, by kazoo."""
