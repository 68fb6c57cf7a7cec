"""Which samples a claim gets: built-in samplers, and the contract for own ones."""

from transferqueue.coordinator.samplers.base import Candidates, Grouping, Sampler, Sharing
from transferqueue.coordinator.samplers.blocks import Blocks, BlockSampler
from transferqueue.coordinator.samplers.fifo import Fifo
from transferqueue.coordinator.samplers.freshest_first import FreshestFirst
from transferqueue.coordinator.samplers.groups import Groups
from transferqueue.coordinator.samplers.length_balanced import LengthBalanced
from transferqueue.coordinator.samplers.rank_aware import RankAware
from transferqueue.coordinator.samplers.registry import SamplerRegistry
from transferqueue.coordinator.samplers.weighted import Weighted

__all__ = [
    "BlockSampler",
    "Blocks",
    "Candidates",
    "Fifo",
    "FreshestFirst",
    "Grouping",
    "Groups",
    "LengthBalanced",
    "RankAware",
    "Sampler",
    "SamplerRegistry",
    "Sharing",
    "Weighted",
]
