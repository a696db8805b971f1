"""The one class that an author subclasses: every theme of the contract together."""

from __future__ import annotations

from stepwell_testkit.dispatch.arrivals import Arrivals
from stepwell_testkit.dispatch.flight import Flight
from stepwell_testkit.dispatch.limits import Limits
from stepwell_testkit.dispatch.lost import Lost
from stepwell_testkit.dispatch.sums import Sums


# The last runs first.
class DispatchKit(Lost, Flight, Limits, Arrivals, Sums):
    """Tests a `Dispatcher`: give the fixture `dispatchers`, one a rank, not opened; the kit opens and closes them.

    They are opened for the sizes among the class attributes, all ranks at once. Ranks are threads of one process. A
    backend that needs a process a rank gives the fixture `world` instead, such as `Processes` makes. Experts are spread
    evenly: rank r owns the r-th share of them. Expert e multiplies a token by e + 1.
    """
