"""Ledger sources: where entries come from and can be read again."""
