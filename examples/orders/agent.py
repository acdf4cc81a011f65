"""The agent: it looks into the stock, and keeps a log of what it was asked."""

import operator
from typing import Annotated, Any

from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

STOCK = {"tea": 10, "cake": 3}


class OutOfStock(Exception):
    pass


class State(TypedDict):
    item: str
    quantity: int
    log: Annotated[list[str], operator.add]


def look(state: State) -> dict[str, Any]:
    if state["quantity"] > STOCK[state["item"]]:
        raise OutOfStock(state["item"])
    return {"log": [f"{state['quantity']} {state['item']}"]}


agent = StateGraph(State).add_node("look", look).add_edge(START, "look")
