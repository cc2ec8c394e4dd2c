"""Why a first token took as long as it did, and why a later one was late: an account of one request.

What an account says, and how in words, is in protocol/account.py and protocol/account_text.py.

history.py      what is known: the events of requests, and the steps
timeline.py     arrival to first token, in parts that leave nothing out
prefix.py       what the prefix cache gave, and where and why it stopped
late_tokens.py  gaps between tokens above a limit, and what would have prevented them
explain.py      joins these
work.py         a step's work, for what-if questions
log.py          keeps the last requests of a running engine
"""

from cudaprefill.observe.explain.explain import explain
from cudaprefill.observe.explain.log import ExplainLog
from cudaprefill.protocol.account import Account

__all__ = ["Account", "ExplainLog", "explain"]
