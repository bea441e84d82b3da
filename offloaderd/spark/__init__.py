"""Spark jobs on whole topics, and the data source: the only package that imports PySpark."""
