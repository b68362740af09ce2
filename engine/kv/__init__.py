"""Who owns which rows of the KV memory; knows no tensors."""
