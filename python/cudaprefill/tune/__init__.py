"""What other settings would do to the traffic there is: replay through the real scheduler, on a virtual clock.

workload.py         who asks for how much and when: made up, or read
trace_workload.py   the same out of a recorded trace
public_traces.py    the same out of published ones: Azure's CSV, Mooncake's JSONL
step_times.py       what a step took, from a recorded trace, and a model of it
least_squares.py    the arithmetic under the model
replay.py           a workload through the scheduler
figures.py          what came of it
report.py           as a table, as JSON, as a picture
advise.py           searches for settings that keep promises
"""
