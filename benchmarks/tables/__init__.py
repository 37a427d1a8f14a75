"""Table models for `pilotfish bench load`, and what makes them."""
