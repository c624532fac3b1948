"""Pages, pictures and tables of results, drawn from results.json alone."""
