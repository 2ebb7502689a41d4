"""Templates, styles, scripts and message catalogues; data only."""
