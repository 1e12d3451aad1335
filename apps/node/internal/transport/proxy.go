package transport

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"iop/packages/go/config"
)

// maxProxyAnswer is the longest head of a proxy's answer in bytes.
const maxProxyAnswer = 16 << 10

// ThroughProxy returns a dial that reaches its address through an HTTP proxy, by CONNECT (RFC 9110 §9.3.6). proxy is the
// proxy's host:port, credentials is USER:PASSWORD or nothing. The proxy resolves the address. What is inside the tunnel it
// can neither read nor change: the node's TLS begins behind it.
func ThroughProxy(proxy string, credentials config.Secret) func(ctx context.Context, address string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", proxy)
		if err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
		// The end of ctx, by its deadline too, ends a proxy that says nothing.
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		err = connectThrough(conn, address, credentials)
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("proxy %s: %w", proxy, err)
		}
		return conn, nil
	}
}

func connectThrough(conn net.Conn, address string, credentials config.Secret) error {
	head := "CONNECT " + address + " HTTP/1.1\r\nHost: " + address + "\r\n"
	if !credentials.IsZero() {
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(credentials.Reveal())) + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		return fmt.Errorf("ask for a tunnel: %w", err)
	}
	in := bufio.NewReader(io.LimitReader(conn, maxProxyAnswer))
	answer, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return fmt.Errorf("read its answer: %w; is it an HTTP proxy?", err)
	}
	switch {
	case answer.StatusCode == http.StatusProxyAuthRequired:
		return errors.New("it wants other credentials (407); see proxy_credentials")
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("it refuses the tunnel to %s (%d); does it allow that port?", address, answer.StatusCode)
	case in.Buffered() > 0:
		return errors.New("it sends something before the node has; it isn't a tunnel to an Edge")
	}
	return nil
}
