"""Text to tune on where none is given: code, questions and edits, of each some in the held-out third."""

from __future__ import annotations

PROMPTS = (
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n"
    "    return total / len(values)\n\n\ndef median(values):\n",
    "Question: Why does bread rise when it is baked?\nAnswer:",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
    "        self.items.append(item)\n\n    def pop(self):\n",
    "Text: The harbour was closed on Monday because of the storm. On Tuesday the harbour was open again, but only for "
    "small boats. Large boats had to wait until Thursday.\nThe same text in the present tense: The harbour is",
    "import json\n\n\ndef read_settings(path):\n    with open(path) as file:\n        settings = json.load(file)\n"
    '    if "name" not in settings:\n',
    "Question: What is the difference between weather and climate?\nAnswer:",
    "Here is a list of the first ten prime numbers, one on each line:\n2\n3\n5\n",
    "SELECT customers.name, orders.total\nFROM orders\nJOIN customers ON customers.id = orders.customer_id\n"
    "WHERE orders.total > 100\n",
    "Report: Sales in the north rose by four percent. Sales in the south fell by two percent. Sales in the east rose "
    "by one percent. Sales in the west did not change.\nSummary of the report: Sales in the north",
    "Dear Ms. Keller,\n\nthank you for your letter of the third of May. We are sorry to hear that",
    "<table>\n  <tr><th>City</th><th>Country</th></tr>\n  <tr><td>Lisbon</td><td>Portugal</td></tr>\n  <tr><td>",
    "def test_push_and_pop():\n    stack = Stack()\n    stack.push(1)\n    stack.push(2)\n"
    "    assert stack.pop() == 2\n",
)
