"""The laboratory of papers: what the papers of hybridnn's methods print, evaluated with one's own numbers."""
