package wire

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"
	"sync"
	"time"
)

// ProtocolVersion is the version of the messaging protocol that the kernel speaks.
const ProtocolVersion = "5.4"

var delimiter = []byte("<IDS|MSG>")

// Header is a message's header. Fields that we do not use are kept where a header is returned as a parent header.
type Header struct {
	MsgID    string `json:"msg_id"`
	Session  string `json:"session"`
	Username string `json:"username"`
	Date     string `json:"date"`
	MsgType  string `json:"msg_type"`
	Version  string `json:"version"`
}

// Message is a message as it came or as it goes, without its signature.
type Message struct {
	Identities   [][]byte // routing prefix, outermost first; the topic of a published message
	Header       Header
	RawHeader    json.RawMessage // the header as it came: the parent_header of every answer
	ParentHeader json.RawMessage
	Metadata     json.RawMessage
	Content      json.RawMessage
	Buffers      [][]byte
}

// Signer signs and checks messages with HMAC-SHA256. With an empty key it does neither, as the specification says.
type Signer struct {
	key []byte

	mu   sync.Mutex
	seen map[[sha256.Size]byte]struct{} // signatures that came, so that a message cannot be played back
	ring [][sha256.Size]byte
	next int
}

// NewSigner returns a signer for a connection file's key and signature_scheme.
func NewSigner(scheme, key string) (*Signer, error) {
	if key != "" && scheme != "" && scheme != "hmac-sha256" {
		return nil, fmt.Errorf("connection file: signature_scheme is %q, want hmac-sha256; set Session.signature_scheme to it", scheme)
	}
	return &Signer{key: []byte(key), seen: map[[sha256.Size]byte]struct{}{}}, nil
}

func (s *Signer) sign(parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, s.key)
	for _, p := range parts {
		mac.Write(p)
	}
	return mac.Sum(nil)
}

// Reasons for which a message is dropped.
var (
	ErrMalformed = errors.New("malformed message")
	ErrSignature = errors.New("bad signature")
)

// replayWindow is how many signatures are remembered; it is what jupyter_client remembers (Session.digest_history_size).
const replayWindow = 1 << 16

// Decode checks a multipart message and takes it apart. Errors are ErrMalformed or ErrSignature, wrapped; the signature is checked
// before anything else is looked at.
func (s *Signer) Decode(frames [][]byte) (*Message, error) {
	at := -1
	for i, f := range frames {
		if bytes.Equal(f, delimiter) {
			at = i
			break
		}
	}
	if at < 0 {
		return nil, fmt.Errorf("%w: no delimiter in %d frames", ErrMalformed, len(frames))
	}
	parts := frames[at+1:]
	if len(parts) < 5 {
		return nil, fmt.Errorf("%w: %d frames after the delimiter, want at least 5", ErrMalformed, len(parts))
	}
	if len(s.key) > 0 {
		got := make([]byte, hex.DecodedLen(len(parts[0])))
		if n, err := hex.Decode(got, parts[0]); err != nil || n != sha256.Size {
			return nil, fmt.Errorf("%w: not %d hex digits", ErrSignature, 2*sha256.Size)
		}
		if !hmac.Equal(got, s.sign(parts[1:5]...)) {
			return nil, fmt.Errorf("%w: it does not fit this kernel's key", ErrSignature)
		}
		if s.replayed([sha256.Size]byte(got)) {
			return nil, fmt.Errorf("%w: this message came before", ErrSignature)
		}
	}
	m := &Message{Identities: frames[:at], RawHeader: parts[1], ParentHeader: parts[2], Metadata: parts[3], Content: parts[4], Buffers: parts[5:]}
	for i, name := range []string{"header", "parent_header", "metadata", "content"} {
		part := bytes.TrimLeft(parts[1+i], " \t\r\n")
		if len(part) == 0 || part[0] != '{' || !json.Valid(part) {
			return nil, fmt.Errorf("%w: %s is not a JSON object", ErrMalformed, name)
		}
	}
	if err := json.Unmarshal(m.RawHeader, &m.Header); err != nil {
		return nil, fmt.Errorf("%w: header: %w", ErrMalformed, err)
	}
	if m.Header.MsgType == "" || m.Header.MsgID == "" {
		return nil, fmt.Errorf("%w: header without msg_type or msg_id", ErrMalformed)
	}
	return m, nil
}

// replayed says whether a signature came before, and remembers it.
func (s *Signer) replayed(sig [sha256.Size]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.seen[sig]; ok {
		return true
	}
	if len(s.ring) < replayWindow {
		s.ring = append(s.ring, sig)
	} else {
		delete(s.seen, s.ring[s.next])
		s.ring[s.next] = sig
		s.next = (s.next + 1) % replayWindow
	}
	s.seen[sig] = struct{}{}
	return false
}

// Encode puts a message together: identities, delimiter, signature, header, parent header, metadata, content, buffers.
func (s *Signer) Encode(m *Message) [][]byte {
	frames := make([][]byte, 0, len(m.Identities)+6+len(m.Buffers))
	frames = append(frames, m.Identities...)
	frames = append(frames, delimiter)
	var sig []byte
	if len(s.key) > 0 {
		sig = hex.AppendEncode(nil, s.sign(m.RawHeader, m.ParentHeader, m.Metadata, m.Content))
	}
	frames = append(frames, sig, m.RawHeader, m.ParentHeader, m.Metadata, m.Content)
	return append(frames, m.Buffers...)
}

// newID returns a random UUID (version 4).
func newID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "kernel"
}

// newMessage makes a message of ours; parent is the raw header of what it answers, nil for nothing.
func newMessage(session, username, msgType string, parent json.RawMessage, content any) (*Message, error) {
	m := &Message{Header: Header{
		MsgID: newID(), Session: session, Username: username, MsgType: msgType, Version: ProtocolVersion,
		Date: time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"),
	}, ParentHeader: parent, Metadata: json.RawMessage("{}")}
	if parent == nil {
		m.ParentHeader = json.RawMessage("{}")
	}
	var err error
	if m.RawHeader, err = json.Marshal(m.Header); err != nil {
		return nil, fmt.Errorf("%s: header: %w", msgType, err)
	}
	if m.Content, err = marshal(content); err != nil {
		return nil, fmt.Errorf("%s: content: %w", msgType, err)
	}
	return m, nil
}

// marshal is json.Marshal without the escaping of <, > and &, which would make HTML output up to six times as long.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
