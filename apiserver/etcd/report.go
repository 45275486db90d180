package etcd

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"quorate.dev/apiserver/config"
)

// reporter sends a MemberReport to clients. It is created before its member.
type reporter struct {
	run string // MemberReport.Run
	// agreed is the channel of the leader with which the log was last compared: the channel is closed when another
	// leader is elected. nil: the log has not been compared.
	agreed atomic.Pointer[<-chan struct{}]
	// difference is MemberReport.Difference.
	difference atomic.Pointer[string]
}

// report returns the present report.
func (r *reporter) report() config.MemberReport {
	report := config.MemberReport{Run: r.run}
	if agreed := r.agreed.Load(); agreed != nil {
		report.Compared = !closed(*agreed)
	}
	if difference := r.difference.Load(); difference != nil {
		report.Difference = *difference
	}
	return report
}

// register registers the method at the gRPC server of the client URLs.
func (r *reporter) register(server *grpc.Server) {
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: config.MemberReportService, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: config.MemberReportName, Handler: r.handle}},
	}, r)
}

// handle implements grpc.MethodHandler.
//
//nolint:revive // the type's order of parameters
func (r *reporter) handle(
	_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor,
) (any, error) {
	request := &emptypb.Empty{}
	if err := decode(request); err != nil {
		return nil, err
	}
	respond := func(context.Context, any) (any, error) { return wrapperspb.String(r.report().String()), nil }
	if interceptor == nil {
		return respond(ctx, request)
	}
	return interceptor(ctx, request, &grpc.UnaryServerInfo{Server: r, FullMethod: config.MemberReportMethod}, respond)
}
