"""Engines that run a model over data sets of many machines: Ray Data and Apache Spark."""
