package wire

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// Connection is a connection file (https://jupyter-client.readthedocs.io/en/stable/kernels.html#connection-files).
type Connection struct {
	Transport       string `json:"transport"` // tcp or ipc
	IP              string `json:"ip"`        // address to bind; for ipc, what the socket paths start with
	ShellPort       int    `json:"shell_port"`
	ControlPort     int    `json:"control_port"`
	IOPubPort       int    `json:"iopub_port"`
	StdinPort       int    `json:"stdin_port"`
	HBPort          int    `json:"hb_port"`
	Key             string `json:"key"` // signs messages; empty for no signatures
	SignatureScheme string `json:"signature_scheme"`
}

// ReadConnection reads and checks a connection file.
func ReadConnection(path string) (Connection, error) {
	var c Connection
	b, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("connection file: %w; Jupyter writes it and gives its path with --connection-file", err)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("connection file %s: %w", path, err)
	}
	for name, port := range map[string]int{"shell_port": c.ShellPort, "control_port": c.ControlPort, "iopub_port": c.IOPubPort,
		"stdin_port": c.StdinPort, "hb_port": c.HBPort} {
		if port <= 0 || port > 65535 && c.Transport != "ipc" {
			return c, fmt.Errorf("connection file %s: %s is %d, want a port number", path, name, port)
		}
	}
	if c.Transport != "tcp" && c.Transport != "ipc" {
		return c, fmt.Errorf("connection file %s: transport is %q, want tcp or ipc", path, c.Transport)
	}
	if c.IP == "" {
		return c, fmt.Errorf("connection file %s: ip is empty", path)
	}
	return c, nil
}

// endpoint returns the network and the address to bind, for net.Listen. Only an ip of "*" stands for every interface.
func (c Connection) endpoint(port int) (network, address string) {
	if c.Transport == "ipc" {
		return "unix", c.IP + "-" + strconv.Itoa(port)
	}
	ip := c.IP
	if ip == "*" {
		ip = "0.0.0.0"
	}
	return "tcp", net.JoinHostPort(ip, strconv.Itoa(port))
}

var kernelFile = regexp.MustCompile(`^kernel-(.+)\.json$`)

// KernelID is the id under which Jupyter's server knows the kernel of a connection file ("kernel-ID.json"); empty where it has none.
func KernelID(connectionFile string) string {
	if m := kernelFile.FindStringSubmatch(filepath.Base(connectionFile)); m != nil {
		return m[1]
	}
	return ""
}
