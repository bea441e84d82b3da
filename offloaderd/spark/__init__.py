"""Work on whole topics with Spark: the only room that imports PySpark."""
