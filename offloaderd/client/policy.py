"""The part of the client that is about policies."""

from __future__ import annotations

from offloaderd.client.connection import Connection
from offloaderd.rpc.v1 import policy_pb2, policy_pb2_grpc


class PolicyCalls(Connection):
    """Calls of PolicyService, for DaemonClient to inherit."""

    async def policies(self, level: policy_pb2.PolicyLevel) -> policy_pb2.GetPoliciesResponse:
        """Return what is said at a level, and what holds there."""
        stub = policy_pb2_grpc.PolicyServiceStub(self._channel)
        with self._errors():
            return await stub.GetPolicies(policy_pb2.GetPoliciesRequest(level=level), timeout=self._timeout_s)

    async def set_policies(
        self, level: policy_pb2.PolicyLevel, policies: policy_pb2.OffloadPolicies, *, dry_run: bool = False
    ) -> policy_pb2.ChangePoliciesResponse:
        """Say something at a level, in place of what was said there."""
        request = policy_pb2.SetPoliciesRequest(level=level, policies=policies, dry_run=dry_run)
        stub = policy_pb2_grpc.PolicyServiceStub(self._channel)
        with self._errors():
            return await stub.SetPolicies(request, timeout=self._timeout_s)

    async def remove_policies(
        self, level: policy_pb2.PolicyLevel, *, dry_run: bool = False
    ) -> policy_pb2.ChangePoliciesResponse:
        """Say nothing at a level any more."""
        request = policy_pb2.RemovePoliciesRequest(level=level, dry_run=dry_run)
        stub = policy_pb2_grpc.PolicyServiceStub(self._channel)
        with self._errors():
            return await stub.RemovePolicies(request, timeout=self._timeout_s)
