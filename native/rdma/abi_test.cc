#include "rdma/abi.h"

#include <gtest/gtest.h>

#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>

#include "rdma/verbs.h"

namespace halfstep::rdma::abi {
namespace {

#define SAME_FIELD(ours, our_field, theirs, their_field)               \
  EXPECT_EQ(offsetof(ours, our_field), offsetof(theirs, their_field)); \
  EXPECT_EQ(sizeof(std::declval<ours>().our_field), sizeof(std::declval<theirs>().their_field))

TEST(Abi, WhatTheLibraryMakesHasItsFieldsWhereTheHeaderHasThem) {
  SAME_FIELD(Context, device, ibv_context, device);
  SAME_FIELD(Context, ops, ibv_context, ops);
  SAME_FIELD(Context, cmd_fd, ibv_context, cmd_fd);
  SAME_FIELD(ContextOps, alloc_mw, ibv_context_ops, alloc_mw);
  SAME_FIELD(ContextOps, dealloc_mw, ibv_context_ops, dealloc_mw);
  SAME_FIELD(ContextOps, poll_cq, ibv_context_ops, poll_cq);
  SAME_FIELD(ContextOps, req_notify_cq, ibv_context_ops, req_notify_cq);
  SAME_FIELD(ContextOps, post_send, ibv_context_ops, post_send);
  SAME_FIELD(ContextOps, post_recv, ibv_context_ops, post_recv);
  SAME_FIELD(Pd, context, ibv_pd, context);
  SAME_FIELD(MemoryRegion, addr, ibv_mr, addr);
  SAME_FIELD(MemoryRegion, length, ibv_mr, length);
  SAME_FIELD(MemoryRegion, lkey, ibv_mr, lkey);
  SAME_FIELD(MemoryRegion, rkey, ibv_mr, rkey);
  SAME_FIELD(MemoryWindow, rkey, ibv_mw, rkey);
  SAME_FIELD(MemoryWindow, type, ibv_mw, type);
  SAME_FIELD(CompletionChannel, fd, ibv_comp_channel, fd);
  SAME_FIELD(Cq, context, ibv_cq, context);
  SAME_FIELD(Cq, channel, ibv_cq, channel);
  SAME_FIELD(Qp, context, ibv_qp, context);
  SAME_FIELD(Qp, qp_num, ibv_qp, qp_num);
}

TEST(Abi, WhatWeMakeIsAsLargeAsTheHeaderHasIt) {
  EXPECT_EQ(sizeof(GidEntry), sizeof(ibv_gid_entry));
  EXPECT_EQ(sizeof(PortAttributes), sizeof(ibv_port_attr));
  EXPECT_EQ(sizeof(DeviceAttributes), sizeof(ibv_device_attr));
  EXPECT_EQ(sizeof(QpInit), sizeof(ibv_qp_init_attr));
  EXPECT_EQ(sizeof(QpAttributes), sizeof(ibv_qp_attr));
  EXPECT_EQ(sizeof(AddressVector), sizeof(ibv_ah_attr));
  EXPECT_EQ(sizeof(Piece), sizeof(ibv_sge));
  EXPECT_EQ(sizeof(ReceiveRequest), sizeof(ibv_recv_wr));
  EXPECT_EQ(sizeof(Completion), sizeof(ibv_wc));
  EXPECT_EQ(sizeof(SendRequest), sizeof(ibv_send_wr));
}

TEST(Abi, WhatWeMakeHasItsFieldsWhereTheHeaderHasThem) {
  SAME_FIELD(GidEntry, gid, ibv_gid_entry, gid);
  SAME_FIELD(GidEntry, gid_type, ibv_gid_entry, gid_type);
  SAME_FIELD(PortAttributes, state, ibv_port_attr, state);
  SAME_FIELD(PortAttributes, active_mtu, ibv_port_attr, active_mtu);
  SAME_FIELD(PortAttributes, gid_tbl_len, ibv_port_attr, gid_tbl_len);
  SAME_FIELD(PortAttributes, max_msg_sz, ibv_port_attr, max_msg_sz);
  SAME_FIELD(PortAttributes, link_layer, ibv_port_attr, link_layer);
  SAME_FIELD(DeviceAttributes, max_qp_wr, ibv_device_attr, max_qp_wr);
  SAME_FIELD(DeviceAttributes, device_cap_flags, ibv_device_attr, device_cap_flags);
  SAME_FIELD(DeviceAttributes, max_sge, ibv_device_attr, max_sge);
  SAME_FIELD(DeviceAttributes, max_qp_rd_atom, ibv_device_attr, max_qp_rd_atom);
  SAME_FIELD(DeviceAttributes, max_qp_init_rd_atom, ibv_device_attr, max_qp_init_rd_atom);
  SAME_FIELD(DeviceAttributes, phys_port_cnt, ibv_device_attr, phys_port_cnt);
  SAME_FIELD(QpInit, send_cq, ibv_qp_init_attr, send_cq);
  SAME_FIELD(QpInit, recv_cq, ibv_qp_init_attr, recv_cq);
  SAME_FIELD(QpInit, cap, ibv_qp_init_attr, cap);
  SAME_FIELD(QpInit, qp_type, ibv_qp_init_attr, qp_type);
  SAME_FIELD(QpInit, sq_sig_all, ibv_qp_init_attr, sq_sig_all);
  SAME_FIELD(QpCapacity, max_send_wr, ibv_qp_cap, max_send_wr);
  SAME_FIELD(QpCapacity, max_recv_wr, ibv_qp_cap, max_recv_wr);
  SAME_FIELD(QpCapacity, max_send_sge, ibv_qp_cap, max_send_sge);
  SAME_FIELD(AddressVector, grh, ibv_ah_attr, grh);
  SAME_FIELD(AddressVector, is_global, ibv_ah_attr, is_global);
  SAME_FIELD(AddressVector, port_num, ibv_ah_attr, port_num);
  SAME_FIELD(GlobalRoute, sgid_index, ibv_global_route, sgid_index);
  SAME_FIELD(GlobalRoute, hop_limit, ibv_global_route, hop_limit);
  SAME_FIELD(QpAttributes, qp_state, ibv_qp_attr, qp_state);
  SAME_FIELD(QpAttributes, path_mtu, ibv_qp_attr, path_mtu);
  SAME_FIELD(QpAttributes, rq_psn, ibv_qp_attr, rq_psn);
  SAME_FIELD(QpAttributes, sq_psn, ibv_qp_attr, sq_psn);
  SAME_FIELD(QpAttributes, dest_qp_num, ibv_qp_attr, dest_qp_num);
  SAME_FIELD(QpAttributes, qp_access_flags, ibv_qp_attr, qp_access_flags);
  SAME_FIELD(QpAttributes, ah_attr, ibv_qp_attr, ah_attr);
  SAME_FIELD(QpAttributes, pkey_index, ibv_qp_attr, pkey_index);
  SAME_FIELD(QpAttributes, max_rd_atomic, ibv_qp_attr, max_rd_atomic);
  SAME_FIELD(QpAttributes, max_dest_rd_atomic, ibv_qp_attr, max_dest_rd_atomic);
  SAME_FIELD(QpAttributes, min_rnr_timer, ibv_qp_attr, min_rnr_timer);
  SAME_FIELD(QpAttributes, port_num, ibv_qp_attr, port_num);
  SAME_FIELD(QpAttributes, timeout, ibv_qp_attr, timeout);
  SAME_FIELD(QpAttributes, retry_cnt, ibv_qp_attr, retry_cnt);
  SAME_FIELD(QpAttributes, rnr_retry, ibv_qp_attr, rnr_retry);
  SAME_FIELD(Piece, addr, ibv_sge, addr);
  SAME_FIELD(Piece, length, ibv_sge, length);
  SAME_FIELD(Piece, lkey, ibv_sge, lkey);
  SAME_FIELD(SendRequest, wr_id, ibv_send_wr, wr_id);
  SAME_FIELD(SendRequest, next, ibv_send_wr, next);
  SAME_FIELD(SendRequest, sg_list, ibv_send_wr, sg_list);
  SAME_FIELD(SendRequest, num_sge, ibv_send_wr, num_sge);
  SAME_FIELD(SendRequest, opcode, ibv_send_wr, opcode);
  SAME_FIELD(SendRequest, send_flags, ibv_send_wr, send_flags);
  SAME_FIELD(SendRequest, imm_data, ibv_send_wr, imm_data);
  SAME_FIELD(SendRequest, remote_addr, ibv_send_wr, wr.rdma.remote_addr);
  SAME_FIELD(SendRequest, rkey, ibv_send_wr, wr.rdma.rkey);
  SAME_FIELD(SendRequest, imm_data, ibv_send_wr, invalidate_rkey);
  SAME_FIELD(SendRequest, bind.window, ibv_send_wr, bind_mw.mw);
  SAME_FIELD(SendRequest, bind.key, ibv_send_wr, bind_mw.rkey);
  SAME_FIELD(SendRequest, bind.region, ibv_send_wr, bind_mw.bind_info.mr);
  SAME_FIELD(SendRequest, bind.address, ibv_send_wr, bind_mw.bind_info.addr);
  SAME_FIELD(SendRequest, bind.bytes, ibv_send_wr, bind_mw.bind_info.length);
  SAME_FIELD(SendRequest, bind.access, ibv_send_wr, bind_mw.bind_info.mw_access_flags);
  SAME_FIELD(ReceiveRequest, num_sge, ibv_recv_wr, num_sge);
  SAME_FIELD(Completion, wr_id, ibv_wc, wr_id);
  SAME_FIELD(Completion, status, ibv_wc, status);
  SAME_FIELD(Completion, opcode, ibv_wc, opcode);
  SAME_FIELD(Completion, imm_data, ibv_wc, imm_data);
  SAME_FIELD(Completion, qp_num, ibv_wc, qp_num);
}

TEST(Abi, NumbersAreTheHeaders) {
  EXPECT_EQ(kGidRoceV2, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V2));
  EXPECT_EQ(kPortActive, IBV_PORT_ACTIVE);
  EXPECT_EQ(kAccessLocalWrite, IBV_ACCESS_LOCAL_WRITE);
  EXPECT_EQ(kAccessRemoteWrite, IBV_ACCESS_REMOTE_WRITE);
  EXPECT_EQ(kAccessRemoteRead, IBV_ACCESS_REMOTE_READ);
  EXPECT_EQ(kAccessWindowBind, IBV_ACCESS_MW_BIND);
  EXPECT_EQ(kWindowType2, IBV_MW_TYPE_2);
  EXPECT_EQ(kDeviceWindows2A, static_cast<unsigned>(IBV_DEVICE_MEM_WINDOW_TYPE_2A));
  EXPECT_EQ(kDeviceWindows2B, static_cast<unsigned>(IBV_DEVICE_MEM_WINDOW_TYPE_2B));
  EXPECT_EQ(kQpReliable, IBV_QPT_RC);
  EXPECT_EQ(static_cast<int>(QpState::Reset), IBV_QPS_RESET);
  EXPECT_EQ(static_cast<int>(QpState::Init), IBV_QPS_INIT);
  EXPECT_EQ(static_cast<int>(QpState::ReadyToReceive), IBV_QPS_RTR);
  EXPECT_EQ(static_cast<int>(QpState::ReadyToSend), IBV_QPS_RTS);
  EXPECT_EQ(static_cast<int>(QpState::Error), IBV_QPS_ERR);
  EXPECT_EQ(kQpState, IBV_QP_STATE);
  EXPECT_EQ(kQpAccessFlags, IBV_QP_ACCESS_FLAGS);
  EXPECT_EQ(kQpPkeyIndex, IBV_QP_PKEY_INDEX);
  EXPECT_EQ(kQpPort, IBV_QP_PORT);
  EXPECT_EQ(kQpAddress, IBV_QP_AV);
  EXPECT_EQ(kQpPathMtu, IBV_QP_PATH_MTU);
  EXPECT_EQ(kQpTimeout, IBV_QP_TIMEOUT);
  EXPECT_EQ(kQpRetryCount, IBV_QP_RETRY_CNT);
  EXPECT_EQ(kQpRnrRetry, IBV_QP_RNR_RETRY);
  EXPECT_EQ(kQpReceivePsn, IBV_QP_RQ_PSN);
  EXPECT_EQ(kQpReadsOut, IBV_QP_MAX_QP_RD_ATOMIC);
  EXPECT_EQ(kQpRnrTimer, IBV_QP_MIN_RNR_TIMER);
  EXPECT_EQ(kQpSendPsn, IBV_QP_SQ_PSN);
  EXPECT_EQ(kQpReadsIn, IBV_QP_MAX_DEST_RD_ATOMIC);
  EXPECT_EQ(kQpDestination, IBV_QP_DEST_QPN);
  EXPECT_EQ(kWrite, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(kWriteImmediate, IBV_WR_RDMA_WRITE_WITH_IMM);
  EXPECT_EQ(kRead, IBV_WR_RDMA_READ);
  EXPECT_EQ(kInvalidate, IBV_WR_LOCAL_INV);
  EXPECT_EQ(kBindWindow, IBV_WR_BIND_MW);
  EXPECT_EQ(kSignaled, static_cast<unsigned>(IBV_SEND_SIGNALED));
  EXPECT_EQ(kStatusLengthError, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(kStatusProtectionError, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(kStatusFlushed, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(kStatusRemoteInvalid, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(kStatusRemoteAccess, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(kStatusRetryExceeded, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(kStatusRnrExceeded, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(kCompletedWrite, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(kCompletedRead, IBV_WC_RDMA_READ);
  EXPECT_EQ(kCompletedBind, IBV_WC_BIND_MW);
  EXPECT_EQ(kCompletedInvalidate, IBV_WC_LOCAL_INV);
  EXPECT_EQ(kReceived, IBV_WC_RECV);
  EXPECT_EQ(kReceivedWithImmediate, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(mtu_number(1024), IBV_MTU_1024);
  EXPECT_EQ(mtu_bytes(IBV_MTU_4096), 4096U);
}

#undef SAME_FIELD

}  // namespace
}  // namespace halfstep::rdma::abi

#else

TEST(Abi, IsComparedWithTheHeaderWhereThatIs) { GTEST_SKIP() << "infiniband/verbs.h is not installed: libibverbs-dev has it"; }

#endif
