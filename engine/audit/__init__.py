"""Audits: what every verifier's output law really is, by exact enumeration and on a served pair."""
