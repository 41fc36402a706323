"""Engines that run a model over a data set on many machines: Ray Data and Apache Spark."""
