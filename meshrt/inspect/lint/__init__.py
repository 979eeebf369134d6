"""What a program pays for without need, with changes that were tried: `meshrt inspect --lint`, `report(lint=True)`.

A rule (a file of `rules`) walks over the decided and partitioned program and yields hits: what it costs, where, and
changes that might help, as edits of annotations. Each change is tried on the whole pipeline (`subject.py`), and given
only if the figure that the rule is about falls and no other rises (`verify.py`). What is only worth knowing together
with a better way is dropped where none is found. `suppress.py` takes out what comments in the source ask for.
"""

from meshrt.inspect.lint.rules import rule_names
from meshrt.inspect.lint.subject import Subject, subject_of_module, subject_of_stage
from meshrt.inspect.lint.verify import lint

__all__ = ["Subject", "lint", "rule_names", "subject_of_module", "subject_of_stage"]
