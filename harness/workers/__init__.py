"""Run a probe inside a stack: a warm worker per stack, a forked child per rank."""
