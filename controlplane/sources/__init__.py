"""What comes in: exposition text, scraping, engine dialects, GPU and query APIs, discovery."""
