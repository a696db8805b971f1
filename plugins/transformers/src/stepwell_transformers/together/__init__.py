"""Steps that groups with a scheduler each compute together, since each of them has some of the experts."""

from stepwell_transformers.together.bells import Bells
from stepwell_transformers.together.company import Company
from stepwell_transformers.together.inbox import Inbox
from stepwell_transformers.together.rounds import Agreed, Rounds
from stepwell_transformers.together.together import Together

__all__ = ["Agreed", "Bells", "Company", "Inbox", "Rounds", "Together"]
