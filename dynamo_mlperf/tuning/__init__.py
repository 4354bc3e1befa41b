"""Rate search as pure steps over recorded probes, and the probes that an external command makes."""
