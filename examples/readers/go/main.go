// Reads a topic from offloaderd, or lists topics: a client made from protos/ alone. `make readers` builds it.
package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "offloaderd/reader/offloaderdv1"
)

const pageSize = 100

// read prints position, length and CRC-32C of every entry of a topic.
func read(ctx context.Context, connection grpc.ClientConnInterface, topic string) error {
	stream, err := pb.NewReadServiceClient(connection).Read(ctx, &pb.ReadRequest{Topic: topic})
	if err != nil {
		return err
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		batch := answer.GetBatch()
		for number, payload := range batch.GetPayloads() {
			entry := batch.GetFirstEntryId() + int64(number)
			fmt.Printf("%d:%d %d %08x\n", batch.GetLedgerId(), entry, len(payload), crc32.Checksum(payload, table))
		}
	}
}

// list prints every topic, page by page.
func list(ctx context.Context, connection grpc.ClientConnInterface) error {
	request := &pb.ListTopicsRequest{PageSize: pageSize}
	for {
		page, err := pb.NewAdminServiceClient(connection).ListTopics(ctx, request)
		if err != nil {
			return err
		}
		for _, topic := range page.Topics {
			fmt.Println(topic.Topic)
		}
		if page.NextPageToken == "" {
			return nil
		}
		request.PageToken = page.NextPageToken
	}
}

// explain prints what the daemon said of an error: its code, the reason, and what to do.
func explain(err error) {
	found := status.Convert(err)
	reason, hint := "", ""
	for _, detail := range found.Details() {
		switch one := detail.(type) {
		case *errdetails.ErrorInfo:
			reason = one.Reason
		case *errdetails.Help:
			hint = one.Links[0].Description
		}
	}
	fmt.Fprintf(os.Stderr, "%s %s: %s\n%s\n", found.Code(), reason, found.Message(), hint)
}

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 {
		fmt.Fprintln(os.Stderr, "usage: reader HOST:PORT [TOPIC]    (without a topic: list the topics)")
		os.Exit(2)
	}
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err == nil {
		defer connection.Close()
		if len(os.Args) == 3 {
			err = read(context.Background(), connection, os.Args[2])
		} else {
			err = list(context.Background(), connection)
		}
	}
	if err != nil {
		explain(err)
		os.Exit(1)
	}
}
