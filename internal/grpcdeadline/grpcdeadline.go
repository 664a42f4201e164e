// Package grpcdeadline bounds how long a gRPC client waits for a server: one that is
// stopped or hangs takes calls and never answers.
package grpcdeadline

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Options returns the options of a client that ends a call, or a stream, with
// codes.Unavailable when the server does not send its answer, or its next message,
// within limit. Methods that begin with one of the prefixes are left to their callers.
func Options(limit time.Duration, except ...string) []grpc.DialOption {
	b := bound{limit, except}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(b.call), grpc.WithChainStreamInterceptor(b.stream)}
}

type bound struct {
	limit  time.Duration
	except []string
}

func (b bound) spares(method string) bool {
	for _, prefix := range b.except {
		if strings.HasPrefix(method, prefix) {
			return true
		}
	}
	return false
}

func (b bound) late(method string) error {
	return status.Errorf(codes.Unavailable, "no answer to %s within %s", method, b.limit)
}

func (b bound) call(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if b.spares(method) {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	within, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	err := invoke(within, method, req, reply, cc, opts...)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return b.late(method)
	}
	return err
}

func (b bound) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if b.spares(method) {
		return open(ctx, desc, cc, method, opts...)
	}
	within, cancel := context.WithCancel(ctx)
	s, err := open(within, desc, cc, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &stream{ClientStream: s, ctx: ctx, cancel: cancel, bound: b, method: method}, nil
}

// A stream bounds the wait for each message.
type stream struct {
	grpc.ClientStream
	ctx    context.Context // of the caller; the stream's own ends with it or by cancel
	cancel context.CancelFunc
	bound  bound
	method string
}

// RecvMsg receives the next message. With an error, the end included, the stream is over.
func (s *stream) RecvMsg(m any) error {
	timer := time.AfterFunc(s.bound.limit, s.cancel)
	err := s.ClientStream.RecvMsg(m)
	inTime := timer.Stop()
	if err == nil {
		return nil
	}
	s.cancel()
	if !inTime && s.ctx.Err() == nil {
		return s.bound.late(s.method)
	}
	return err
}
