package procs

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// OwnHost is a loopback address that is the caller's own: what somebody else listens on or dials from at 127.0.0.1
// doesn't take its ports while a program is down.
func OwnHost() string {
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	listener, err := net.Listen("tcp", host+":0")
	if err != nil {
		return "127.0.0.1" // not every system has the others
	}
	listener.Close()
	return host
}

// FreeAddr finds a loopback address whose port is free, and stays so; a program that can't be given a listener has no
// better way.
func FreeAddr() (string, error) {
	listener, err := net.Listen("tcp", OwnHost()+":0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
