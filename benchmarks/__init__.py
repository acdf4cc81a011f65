"""Speed, measured: ours and the official savers side by side, on one server, in one run.

`python -m benchmarks` runs everything; docs/performance.md tells how to read what it prints.

    contestants     who: our saver, the official one, and the floor, each on a database of its own
    floor           the same bytes by a plain driver in the fewest statements, without a saver
    sampling        how: in random order within each round; medians, ratios, their spread
    conversation    a thread that grows by a message a step, as LangGraph saves it
    lines           W1-W4: put, put_writes, get_tuple and list along one conversation
    agents          W5: a LangGraph agent that loops
    crowds          W6: sixteen callers at once
    shapes          W7: other ways for a value to change
    links, proxy    W8: a server that is far away, and round trips counted
    targets         what is to be reached
    results         what was measured, as JSON
    report, plots   the same as a page
    sweep           another benchmark: a sweep of a large table beside a writer
"""
