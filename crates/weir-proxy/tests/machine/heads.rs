//! Proves: after a server has sent a body behind a response to HEAD, nothing more is sent on a
//! connection behind such a response, so that no other request is lost with it. How: a server whose
//! bodies come a moment later, and POSTs in between.

use weir_proxy::cross::doubt::Doubt;

use crate::world::{Do, World, answer, honest};

#[test]
fn a_stray_body_costs_no_other_request_its_connection_twice() {
    let mut world = World::simple(1);
    world.serve(|seen| match seen.request.method.as_str() {
        "HEAD" => {
            let stray = Do::Bytes(b"a stray body".to_vec());
            Some(vec![Do::Answer(answer(seen.request)), Do::Delay(5_000), stray])
        }
        _ => honest(seen),
    });
    let doubts = |world: &World| {
        world.count_of(0, |stats| stats.doubts[Doubt::ForbiddenBody as usize].get())
    };
    let client = world.client();
    world.ask(client, "HEAD", "/v?n=first", "");
    world.run_for(20_000);
    assert_eq!((world.clients[client].statuses(), doubts(&world)), (vec![200], 1));
    for n in 0..20 {
        let (client, poster) = (world.client(), world.client());
        world.ask(client, "HEAD", &format!("/v?n=h{n}"), "");
        world.run_for(1_000);
        world.ask(poster, "POST", &format!("/v?n=p{n}"), "Content-Length: 0\r\n");
        world.run_for(1_000_000);
        assert_eq!(
            (world.clients[client].statuses(), world.clients[poster].statuses()),
            (vec![200], vec![200]),
            "{n}"
        );
    }
    assert_eq!(doubts(&world), 1);
    world.finish();
}
