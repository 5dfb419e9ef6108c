// Package wire speaks the Jupyter messaging protocol (version 5.4, https://jupyter-client.readthedocs.io/en/stable/messaging.html):
// it binds the five sockets that a connection file names, checks and signs messages, and derives every answer from the request
// that it answers, so that a parent header cannot be forgotten. It knows nothing of Go cells.
//
// ZMTP's handshake is github.com/go-zeromq/zmq4's; the sockets above it are ours, because that library's sockets (v0.17.0) do not
// fit a server that strangers on the machine can connect to. Read in its source: Listen accepts one handshake at a time, so a peer
// that connects and says nothing shuts everyone else out; a frame's length is allocated as announced, before any signature is
// seen; a malformed property or an unknown socket type panics; XPUB keeps subscriptions to itself, so that the welcome of
// JEP 65 cannot be sent; a subscriber that stops reading blocks all others, over a queue without a bound.
package wire
