"""Bisection: from two ends that differ to the release, the pinned pair and the commit that brought it."""
