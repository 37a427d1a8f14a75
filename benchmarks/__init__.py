"""What is measured, and how: prompt sets, arms, statistics, and the checks that need a real model.

Runs from a checkout (`python -m benchmarks.…`) and from `pilotfish bench`. docs/benchmarks.md has the method.
"""
