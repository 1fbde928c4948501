"""Explanation: which pin brings a difference, which config field causes it, and where to bisect."""
