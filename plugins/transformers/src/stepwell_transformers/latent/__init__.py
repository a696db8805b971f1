"""Latent attention: a token keeps one latent that all heads share, and each head's K and V are products of it."""

from stepwell_transformers.latent.absorbed import Absorbed
from stepwell_transformers.latent.config import lacking, latent_of
from stepwell_transformers.latent.modules import absorb

__all__ = ["Absorbed", "absorb", "lacking", "latent_of"]
