from fastweight_helpers import poison, seed

__all__ = ["poison", "seed"]
