"""What tests of Draftwing and of its plug-ins are made of: oracles, mocks and suites that state the rules."""
